"""Number formats at work: what low precision does to training and to weights, what foretells it, what mends it.

Everything here that runs a network needs PyTorch, which is imported where it is used (extra ``lab``).
"""
