"""What do a layer's work, its steps in a row and its paths cost, as claimed and as measured?"""
