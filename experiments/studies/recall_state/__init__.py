"""Does what a model recalls grow with the state that it decodes from?"""
