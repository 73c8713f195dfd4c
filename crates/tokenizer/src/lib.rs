//! Text to tokens and back: BPE and SentencePiece from GGUF metadata or `tokenizer.json`.
