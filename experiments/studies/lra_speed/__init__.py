"""Are Long Range Arena's models as fast, beside one another, as in its paper?"""
