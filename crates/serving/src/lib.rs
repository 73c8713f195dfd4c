//! Chat request to tokens to answer: templates, stop strings; drives an engine for a request.
