"""The arithmetic in numpy: slower than native code, readable, and exact in the sense of the exactness contract.

Every module states the order of its sums. Bits never depend on the rest of a batch, on the place of a row in it, on the
placement of keys and values, or on the number of threads.
"""
