"""Compiled searches and draws for the CPU, where a tensor operation on so few numbers costs more than the arithmetic.

`loading` builds the library at its first use with the system's C compiler; without one the tensor code is used.
"""
