//! Dead letters that other libraries and the broker itself left, read as records.
