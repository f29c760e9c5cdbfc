"""Where curves cross, and how they grow."""

import re

import pytest
from test_gathered import leave, planned

from experiments.report import __main__ as report_command
from experiments.report import benchmark, crossover, palette, scaling
from experiments.report.measurements import details, terminal
from experiments.report.summary import sharing, summary

LENGTHS = [512, 1024, 2048, 4096]


def curve(power, per=1.0):
    return LENGTHS, [per * t**power for t in LENGTHS]


def row(T, contender, minimum, **more):
    shape = {"T": T, "mode": "forward", "dtype": "float32", "batch": 2, "width": 64}
    heads = {"heads": 4, "kv_heads": 4, "why": "", "mark": "", "error": 0.1}
    times = {"minimum": minimum, "median": minimum, "low": minimum, "high": minimum}
    return shape | heads | times | {"contender": contender} | more


def test_power_laws_cross_where_they_do():
    ours, peer = curve(1, 1448.0), curve(2)
    ((t, value),) = crossover.crossings(ours, peer)
    assert t == pytest.approx(1448)
    assert value == pytest.approx(1448**2)
    assert crossover.verdict(ours, peer, "minimum") == "faster from T ≈ 1,448"
    assert crossover.verdict(peer, ours, "temporary_bytes") == "larger from T ≈ 1,448"


def test_curves_that_never_meet_say_so():
    ours, peer = curve(2), curve(2, 3.0)
    assert crossover.verdict(ours, peer, "minimum") == "faster at every T, 512..4,096"
    assert crossover.verdict(peer, ours, "minimum") == "slower at every T, 512..4,096"
    assert crossover.verdict(ours, ([99], [1.0]), "minimum") == "no length in common"


def test_curves_that_meet_twice_name_both():
    told = crossover.verdict(curve(0), (LENGTHS, [2, 0.5, 0.5, 2]), "minimum")
    assert told == "curves cross at T ≈ 724, 2,896, faster beyond"


@pytest.mark.parametrize(
    ("values", "told", "meets"),
    [
        ((5, 5, 5), "equal at every T, 256..1,024", []),
        ((4, 5, 4), "smaller at every T, 256..1,024 (but equal at 512)", []),
        ((6, 5, 6), "larger at every T, 256..1,024 (but equal at 512)", []),
        ((5, 4, 3), "smaller at every T, 256..1,024 (but equal at 256)", []),
        ((4, 4.5, 5), "smaller at every T, 256..1,024 (but equal at 1,024)", []),
        ((4, 5, 6), "larger from T ≈ 256..1,024 (but equal at 512)", [(512, 5)]),
    ],
)
def test_equal_bytes_are_neither_less_nor_more(values, told, meets):
    """They counted as more, and a curve that touches another crossed it twice."""
    ours, peer = ([256, 512, 1024], list(values)), ([256, 512, 1024], [5, 5, 5])
    assert crossover.verdict(ours, peer, "temporary_bytes") == told
    assert crossover.crossings(ours, peer) == meets


def test_what_is_equal_within_noise_is_told_once():
    ours, peer = ([256, 512, 1024], [4, 5, 4]), ([256, 512, 1024], [5, 5, 5])
    told = "faster at every T, 256..1,024 (but within noise at 512)"
    assert crossover.verdict(ours, peer, "minimum", {512}) == told


def test_a_line_goes_from_the_shortest_length_to_the_longest():
    """Of --lengths=2048,512,1024 it went to the end, to the start and to the middle."""
    rows = [row(T, name, T) for T in (2048, 512, 1024) for name in ("attn", "torch")]
    series = crossover.scaling(rows, "forward", "minimum")
    assert series == dict.fromkeys(("attn", "torch"), ([512, 1024, 2048], [512, 1024, 2048]))


def test_a_curve_is_of_one_mode_in_its_unit_without_the_copy():
    rows = [
        row(T, name, n * T, mode=mode, temporary_bytes=n * T * 1e6)
        for mode, n in (("forward", 1.0), ("forward+backward", 3.0))
        for name in ("attn", "torch", "copy")
        for T in LENGTHS[:2]
    ]
    for mode, n in (("forward", 1), ("forward+backward", 3)):
        for key in ("minimum", "temporary_bytes"):  # ms and MB
            found = crossover.scaling(rows, mode, key)
            assert found == dict.fromkeys(("attn", "torch"), ([512, 1024], [n * 512, n * 1024]))


def noisy(spread, *slower):
    """attn beside a peer that takes 1 ms, 10% slower at some lengths and faster at the others."""
    rows = []
    for T in LENGTHS:
        least = 1.1 if T in slower else 0.9
        rows += [row(T, "attn", least, high=least + spread), row(T, "torch", 1.0, high=1 + spread)]
    return rows


def test_a_crossing_within_noise_is_not_told(tmp_path):
    """Two were printed about a length at which the medians differed by a tenth of their spread."""
    told = lambda rows: crossover.crossovers(rows)[0][2]["torch"]
    assert told(noisy(0.01, 1024)) == "curves cross at T ≈ 737, 1,423, faster beyond"
    assert told(noisy(0.3, 1024)) == "within noise at every T, 512..4,096"
    for one in (rows := noisy(0.01, 1024)):
        one["high"] += 0.3 * (one["T"] == 1024)
    assert told(rows) == "faster at every T, 512..4,096 (but within noise at 1,024)"
    assert crossover.within_noise(rows, "forward", "minimum") == {"torch": {1024}}
    for one in (rows := noisy(0.01, 1024, 512)):
        one["high"] += 0.3 * (one["T"] == 1024)
    assert told(rows) == "faster from T ≈ 512..2,048 (but within noise at 1,024)"
    other = [one | {"mode": "decode"} for one in noisy(0.01, 1024)]
    assert crossover.within_noise([*other, *rows], "decode", "minimum") == {}
    suites = {"softmax": {"title": "softmax", "rows": rows}}
    page = benchmark.write(suites, {"command": "c"}, tmp_path).read_text()
    assert "Rings: where attn crosses" not in page
    assert "within noise: Of two times" in (tmp_path / "benchmark.md").read_text()


def test_bytes_have_no_noise():
    rows = [{**one, "temporary_bytes": one["minimum"] * 1e6} for one in noisy(0.3, 512)]
    assert crossover.crossovers(rows)[1][1:] == ("memory", {"torch": "smaller from T ≈ 712"})


def test_exponents_of_time_stand_beside_those_of_work():
    rows = [{**row(T, "attn", T**1.5), "work": 7.0 * T} for T in LENGTHS]
    rows += [row(T, "torch", T**2.0) for T in LENGTHS]
    rows[-1]["minimum"] *= 4
    sure = "attn T^1.50 ± 0.00 by work T^1.00 ± 0.00 (512..4,096)"
    unsure = "torch T^2.60 ± 1.49 (512..4,096)"
    told = f"Time of forward grows as, ± 95% of the fit: {sure}, {unsure}."
    assert list(crossover.exponents(rows)) == [told]


def test_an_exponent_is_of_three_lengths_and_of_the_long_ones_if_they_are_as_many():
    def told(*lengths):
        rows = [row(T, "attn", max(T, 2048) ** 2) for T in lengths]  # a fixed cost up to there
        return [x.partition("attn ")[2] for x in crossover.exponents(rows)]

    assert told(512, 1024, 2048, 4096, 8192) == ["T^2.00 ± 0.00 (2,048..8,192)."]
    assert told(512, 1024, 2048, 2048) == ["T^0.00 ± 0.00 (512..2,048)."]
    assert told(512, 512, 1024, 1024) == told(512, 1024) == []


def test_of_one_length_no_curve_is_told():
    assert crossover.crossovers([row(512, "attn", 1.0), row(512, "torch", 2.0)]) == []


def test_the_summary_has_ratios_and_what_is_missing():
    rows = [row(512, "attn", 1.0), row(512, "torch", 4.0)]
    rows += [row(1024, "attn", 3.0), {**row(1024, "torch", 2.0), "why": "wrong, so not timed: x"}]
    found = summary(rows)
    assert found.headings[:3] == ["T", "attn ms", "/ torch"]
    assert [cells[2] for cells in found.cells] == ["0.250", "wrong"]
    assert details(rows[2:])[1][1] == ["torch", "wrong, so not timed: x"]


def test_all_that_was_measured_is_in_the_details_and_what_is_short_on_a_terminal():
    more = {"peak_bytes": 3e6, "flops": 2e9, "compile_seconds": 0.5, "bytes_per_second": 7e9}
    rows = [row(64, "attn", 1.0, **more), row(64, "torch", 4.0, **more)]
    rows += [row(64, "copy", 0.5, bytes_per_second=8e9)]
    headings, cells = details(rows)
    assert [dict(zip(headings, x)) for x in cells][1] == {
        "contender": "torch",
        "min ms": "4.00",
        "median ms": "4.00",
        "half within": "4.00..4.00",
        "attn / it": "0.250",
        "GB/s": "7.00",
        "peak MB": "3.00",
        "GFLOP": "2.00",
        "compile s": "0.500",
        "error / allowed": "0.100",
    }
    assert dict(zip(headings, cells[2]))["attn / it"] == "—"  # a copy is no peer
    assert details(rows, short=True)[0] == ["contender", "min ms", "median ms", "attn / it"]


def test_a_ratio_within_noise_is_marked_and_not_called_slow():
    rows = noisy(0.01, 512) + [one | {"T": 2 * one["T"]} for one in noisy(0.3, 512)[:2]]
    found = summary(rows[:2] + rows[-2:])
    assert [cells[2] for cells in found.cells] == ["1.10", "1.10 ~"]
    assert found.slow == [{2}, set()]
    plain = summary([row(64, "plain", 1.0, high=1.6), row(64, "cap", 1.5), row(64, "sinks", 1.7)])
    assert plain.cells == [["64", "1.00", "1.50 ~", "1.70"]]
    assert plain.slow == [{3}]


def test_variants_are_compared_with_plain():
    found = summary([row(512, "plain", 1.0), row(512, "ALiBi", 1.5), row(512, "sinks", 1.2)])
    assert found.headings == ["T", "plain ms", "ALiBi", "sinks"]
    assert found.cells == [["512", "1.00", "1.50", "1.20"]]
    assert found.slow == [{2}]


def test_fewer_key_heads_are_compared_with_all():
    of = lambda mode: [
        row(64, "attn", t, mode=mode, heads=8, kv_heads=k) for k, t in ((8, 6), (2, 4), (1, 1))
    ]
    rows = of("decode")
    rows[1]["why"] = "wrong, so not timed: x"
    assert sharing(of("forward") + rows) == [
        "attn, 8 heads, float32, width 64, T = 64: faster than with 8 key heads by 6x with 1."
    ]


def test_several_shapes_share_a_picture_of_how_many_times_faster(tmp_path):
    rows = []
    for width in (64, 128):
        for T in LENGTHS:
            rows.append(row(T, "attn", T * 1448.0, width=width))
            rows.append(row(T, "torch", T * T, width=width))
    found = {"softmax": {"title": "softmax", "rows": rows}}
    text = benchmark.write(found, {"command": "c"}, tmp_path).read_text()
    assert text.count("<svg") == 2  # the first shape by itself, then both
    assert "T ≈ 1,448" in text
    markdown = (tmp_path / "benchmark.md").read_text()
    assert "* forward, time, attn than torch: faster from T ≈ 1,448." in markdown


def test_a_peer_is_named_as_what_it_is(tmp_path):
    """`fla` was taken for the library's kernel, and `attn` was another mechanism in each suite."""
    rows = [row(T, name, T / 512) for T in LENGTHS for name in ("attn", "fla")]
    suites = {"linear": {"title": "linear", "ours": "linear", "rows": rows}}
    page = benchmark.write(suites, {"command": "c"}, tmp_path).read_text()
    names = re.findall(r">([^<>]+)</text>", page)
    assert {"attn: linear", "fla, naive reference"} <= {*names}
    assert not {"attn", "fla"} & {*names}
    for told in (page, (tmp_path / "benchmark.md").read_text()):
        assert not re.search(r"\bfla\b(?!, naive reference)", told)
    assert "fla, naive reference" in terminal("t", rows[:2]).columns[0]._cells


def test_lines_of_a_legend_are_long_enough_for_their_dashes():
    """Behind a marker as wide as what was left of it, every dash looked alike."""
    dashed = palette.Look("#010101", "--")
    series = {"attn": curve(1)}
    names = {"attn": "attn: softmax"}
    svg = scaling.scaling(series, {"attn": dashed}, names, ylabel="ms", name="x")
    (legend,) = re.findall(r'id="x-legend_1">.*', svg, re.S)
    start, end = re.findall(r'd="M ([\d.]+) [\d.]+ \s*L ([\d.]+) [\d.]+ \s*L ([\d.]+)', legend)[0][
        ::2
    ]
    assert float(end) - float(start) > 30  # points; a marker is 4, a dash and its gap 8


def test_a_report_of_a_comparison_and_a_benchmark_shows_scaling(tmp_path, capsys):
    runs, times, out = tmp_path / "runs", tmp_path / "times", tmp_path / "out"
    leave(runs, [(planned("softmax"), 0.5), (planned("linear"), 0.25)])
    times.mkdir()
    rows = [row(T, "attn", 1448.0 * T) for T in LENGTHS] + [
        row(T, "softmax", T**2) for T in LENGTHS
    ]
    suites = {"linearized": {"title": "States & sums", "ours": "linear", "rows": rows}}
    benchmark.write(suites, {"command": "python -m it", "hardware": {"cores": 2}}, times)
    both = [f"--workdir={runs}", f"--workdir={times}", f"--out={out}"]
    assert report_command.main(both) == 0
    page = (out / "report.html").read_text()
    assert "Scaling and crossovers: times" in page
    assert "States &amp; sums" in page
    assert "faster from T ≈ 1,448" in page
    assert 'id="scaling-0-linearized-forward-minimum-' in page
    # softmax has one colour in the table and here, and linear, which is attn here
    figure = page[page.index('id="scaling-0-linearized-forward-minimum-') :]
    for name in ("softmax", "linear"):
        (colour,) = re.findall(rf'style="color:(#\w+)"></span>{name}<', page)
        assert colour in figure[: figure.index("</svg>")]
    # alone it is no comparison, and damaged it is refused by name
    assert report_command.main([f"--workdir={times}", f"--out={out}"]) == 2
    assert "benchmarks have a page" in capsys.readouterr().err
    (times / "benchmark.json").write_text('{"environment": {}, "suites": {"x": {"rows": [{}]}}}')
    assert report_command.main(both) == 5
    assert "is not as experiments.benchmark wrote it" in capsys.readouterr().err


def test_a_ratio_within_noise_is_hollow():
    points = [(512, 1.1, True), (1024, 2.0, True)]
    looks = palette.looks(["torch"])
    full = scaling.ratios({"forward": {"torch": points}}, looks, name="x")
    one = scaling.ratios({"forward": {"torch": [(512, 1.1, False), points[1]]}}, looks, name="x")
    assert one.count("fill: #ffffff; stroke") == full.count("fill: #ffffff; stroke") + 1


def test_the_names_of_many_peers_stay_inside_of_a_picture_of_two_panels():
    """In one line of nine the first three and the last three were cut off."""
    names = "routing sinkhorn moba nsa hierarchical linformer nystrom luna abc".split()
    peers = {name: [(512, 1.1, True), (1024, 2.0, True)] for name in names}
    svg = scaling.ratios({"4/4": peers, "8/2": peers}, palette.looks(names), name="x")
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
    places = re.findall(r'x="(-?[\d.]+)"[^>]*>(\w+)</text>', svg)
    shown = {name: float(x) for x, name in places if name in names}
    assert [*shown] == names
    assert all(0 < x < width - 4 * len(name) for name, x in shown.items())
