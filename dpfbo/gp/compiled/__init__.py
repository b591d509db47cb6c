"""Searches and draws as compiled code for the CPU: a tensor operation on so few numbers takes longer than the numbers.

`loading` builds it at its first use with the system's C compiler; without one the tensor code does the same.
"""
