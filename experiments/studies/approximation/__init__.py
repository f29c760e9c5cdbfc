"""How well do the variants that stand in for softmax approximate it?"""
