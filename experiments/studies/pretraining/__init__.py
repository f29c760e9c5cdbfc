"""Does pretraining on a task's own inputs change how variants compare on it?"""
