//! Edges of lapin that the core works around, each shown on raw lapin. When one of these fails, lapin may have healed:
//! then the work-around can go.
#![allow(missing_docs)]

mod channels;
mod connecting;
mod hostile;
mod names;
mod returns;
