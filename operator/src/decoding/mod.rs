//! What a body means: unwrapped, decoded, and where it breaks off.
