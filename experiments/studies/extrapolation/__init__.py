"""Which encodings of positions carry over to sequences longer than those trained on?"""
