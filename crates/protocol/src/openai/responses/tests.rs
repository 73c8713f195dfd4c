//! Tests of the dialect: requests, and answers streamed and whole.

mod events;
mod request;
