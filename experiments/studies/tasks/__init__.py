"""What do small models learn of each task in minutes on two cores?"""
