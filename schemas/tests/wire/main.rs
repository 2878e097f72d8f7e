//! What travels, held to its promises: golden bytes, round trips, refusals, names, and the JSON
//! Schemas.

mod samples;

mod golden;
mod ids;
mod json_schema;
mod refusals;
mod round_trip;
mod dataset;
mod agent;
mod run_file;
mod mistakes;
mod algorithm;
mod bounds;
mod built_in;
mod rewards;
mod subjects;
