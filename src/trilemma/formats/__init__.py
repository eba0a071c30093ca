"""Number formats: how one element, and a whole tensor with its scales, is stored."""
