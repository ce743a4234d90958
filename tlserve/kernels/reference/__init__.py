"""The arithmetic in numpy: slow beside native code, readable, and exact in the sense of the exactness contract.

Every file states the order of its sums. Bits never depend on the rest of a batch, on where a row lies in it, on the
placement of keys and values, or on the number of threads.
"""
