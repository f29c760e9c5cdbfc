"""What does each mechanism need on a TPU?"""
