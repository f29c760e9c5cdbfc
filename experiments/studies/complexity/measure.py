"""All that is measured of one mixer, at each length."""

import dataclasses

from experiments.measure import cost
from experiments.studies.complexity.reach import reach
from experiments.studies.complexity.settings import At, Settings
from experiments.studies.complexity.work import steps_by_definition, work


def measure(settings: Settings, name: str) -> dict:
    """Plain values, a list entry for each length of `work` or of `reach`."""
    causal = settings.causal

    def shape(at: At) -> cost.Shape:
        return cost.Shape(1, at.length, settings.heads, settings.heads, settings.head_dim)

    counted = [work(at.named()[name], shape(at), causal) for at in settings.work]
    fields = [field.name for field in dataclasses.fields(counted[0])]
    places = [(at.named()[name], shape(at), causal) for at in settings.reach]
    reached = [reach(*place, settings.draws) for place in places]
    return {field: [getattr(w, field) for w in counted] for field in fields} | {
        "steps by definition": [steps_by_definition(*place) for place in places],
        "layers": [layers for layers, _ in reached],
        "share reached by one layer": [share for _, share in reached],
    }
