"""Do Long Range Arena's models rank as in its paper, at a length that two cores can train?"""
