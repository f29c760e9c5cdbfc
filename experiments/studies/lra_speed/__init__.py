"""Do the relative speed and memory of Long Range Arena's models agree with its paper?"""
