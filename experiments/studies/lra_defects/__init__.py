"""What do Long Range Arena's local, sinkhorn, reformer and performer attend to?"""
