//! Messages in the lanes of BLAKE2b as the library has them, for processors without AVX-512.
//!
//! The library falls back to narrower code as soon as fewer messages are left than it has lanes, which is most of the
//! time when there are only as many messages as lanes, or fewer. Here lanes that have no message go along for nothing.

use blake2b_simd::many::{self, HashManyJob, degree, update_many};
use blake2b_simd::{Hash, Params, State};

/// With fewer messages than this left, the library's narrower code is as fast as lanes of which half are idle.
const WORTH_ALL_LANES: usize = 3;
/// Shorter messages are hashed faster than lanes are looked after.
pub(super) const LONG: usize = 64 << 10;

/// Whether [`hash_few`] is the way for these messages: all are long, and few, so that their end matters.
pub(super) fn suit<'a>(mut messages: impl ExactSizeIterator<Item = &'a [u8]>) -> bool {
    messages.len() >= WORTH_ALL_LANES
        && messages.len() <= 8 * degree()
        && messages.all(|message| message.len() >= LONG)
}

/// Hashes messages and hands each hash, with the number of its message, to `done`. They should come longest first.
pub(super) fn hash_many<'a>(
    params: &Params,
    messages: impl ExactSizeIterator<Item = (usize, &'a [u8])> + Clone,
    mut done: impl FnMut(usize, &Hash),
) {
    if suit(messages.clone().map(|(_, message)| message)) {
        return hash_few(params, messages, done);
    }
    let mut jobs: Vec<_> =
        messages.map(|(number, message)| (number, HashManyJob::new(params, message))).collect();
    many::hash_many(jobs.iter_mut().map(|(_, job)| job));
    jobs.iter().for_each(|(number, job)| done(*number, &job.to_hash()));
}

/// A message that is being hashed.
struct Lane<'a> {
    number: usize,
    state: State,
    rest: &'a [u8],
}

/// See [`hash_many`].
fn hash_few<'a>(
    params: &Params,
    messages: impl Iterator<Item = (usize, &'a [u8])>,
    mut done: impl FnMut(usize, &Hash),
) {
    let mut messages = messages.map(|(number, rest)| Lane { number, state: params.to_state(), rest });
    let mut idle: Vec<State> = Vec::new();
    let mut lanes: Vec<Lane<'a>> = messages.by_ref().take(degree()).collect();
    while let Some(shortest) = lanes.iter().map(|lane| lane.rest.len()).min() {
        let missing = if lanes.len() < WORTH_ALL_LANES { 0 } else { degree().saturating_sub(lanes.len()) };
        idle.resize_with(missing, || params.to_state());
        // What idle lanes hash does not matter as long as it is near.
        let near = lanes.first().map_or(&[][..], |lane| &lane.rest[..shortest]);
        let working = lanes.iter_mut().map(|lane| (&mut lane.state, &lane.rest[..shortest]));
        update_many(working.chain(idle.iter_mut().map(|state| (state, near))));
        lanes.retain_mut(|lane| {
            lane.rest = &lane.rest[shortest..];
            if lane.rest.is_empty() {
                done(lane.number, &lane.state.finalize());
            }
            !lane.rest.is_empty()
        });
        lanes.extend(messages.by_ref().take(degree() - lanes.len()));
    }
}
