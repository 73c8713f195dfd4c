//! The dialect from both sides.

mod answers;
mod requests;
mod trips;
