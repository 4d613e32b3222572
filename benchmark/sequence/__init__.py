"""Whole sequences: lltm.LLTM and lltm::sequence compared with nn.LSTM, nn.GRU and a loop of cells."""
