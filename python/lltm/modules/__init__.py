"""The modules. Pickles of whole modules name the files of this package, which therefore keep their names."""

from .cell import LLTMCell, split_weights
from .gru import GRU, GRUCell
from .lltm import LLTM
from .lstm import LSTM, LSTMCell

__all__ = ["GRU", "GRUCell", "LLTM", "LLTMCell", "LSTM", "LSTMCell", "split_weights"]
