"""The experiments of the field, reproduced small: what each idea of K3 is worth at this size.

`python -m unabridged.model.train.ablations --out DIR` trains models of some ten thousand weights
on made-up sequences, each arm with the same seeds, and writes what it measured as JSON, with plots.
"""
