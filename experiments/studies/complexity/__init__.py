"""How do a layer's work, sequential steps and paths grow, as claimed and as measured?"""
