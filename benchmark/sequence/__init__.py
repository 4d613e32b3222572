"""Whole sequences: lltm.LLTM and lltm::sequence beside nn.LSTM, nn.GRU and a loop of cells."""
