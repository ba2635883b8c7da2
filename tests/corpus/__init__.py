"""The generated code of a fixed set of programs, kept as hashes: a change of the house that is to
change no behaviour changes none of them."""
