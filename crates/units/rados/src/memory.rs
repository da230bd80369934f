//! A pool in memory, for tests without a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::access::Connect;
use crate::librados::ConnectError;
use crate::pool::{Callback, Change, Errno, Inspected, Pool, ReadCallback};

#[derive(Clone, Default)]
pub(crate) struct Object {
    pub(crate) content: Vec<u8>,
    pub(crate) attributes: BTreeMap<String, Vec<u8>>,
}

/// A concurrent change by another client.
type Event = Box<dyn FnOnce(&mut State) + Send>;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) objects: BTreeMap<String, Object>,
    /// The error of every change.
    pub(crate) refuses_changes: Option<Errno>,
    /// The error of every read.
    pub(crate) refuses_readings: Option<Errno>,
    /// Whether callbacks are never called.
    pub(crate) is_unresponsive: bool,
    /// Number of connections.
    pub(crate) connections: usize,
    /// Runs once, before the next change.
    pub(crate) before_change: Option<Event>,
    kept: Vec<Box<dyn Send>>,
}

#[derive(Clone, Default)]
pub(crate) struct Memory(pub(crate) Arc<Mutex<State>>);

impl Memory {
    pub(crate) fn connect(&self) -> Connect {
        let memory = self.clone();
        Box::new(move || -> Result<Arc<dyn Pool>, ConnectError> {
            memory.0.lock().connections += 1;
            Ok(Arc::new(memory.clone()))
        })
    }
}

impl State {
    fn carry_out(&mut self, name: &str, changes: &[Change<'_>]) -> Result<(), Errno> {
        let found = self.objects.get(name).cloned();
        let exists = found.is_some();
        let mut object = found.unwrap_or_default();
        let mut is_removed = false;
        for change in changes {
            match *change {
                Change::Create if exists => return Err(Errno(libc::EEXIST)),
                Change::MustExist | Change::Remove if !exists => return Err(Errno(libc::ENOENT)),
                Change::MustHave(name, value) => {
                    let has = object.attributes.get(name).map_or(&[][..], |value| value);
                    if has != value {
                        return Err(Errno(libc::ECANCELED));
                    }
                }
                Change::MustBe(bytes) => {
                    if object.content != bytes {
                        return Err(Errno(4095 + 7));
                    }
                }
                Change::Create | Change::MustExist | Change::Expect { .. } => {}
                Change::Set(name, value) => {
                    object.attributes.insert(name.to_owned(), value.to_vec());
                }
                Change::Write(offset, bytes) => {
                    let end = offset as usize + bytes.len();
                    object.content.resize(object.content.len().max(end), 0);
                    object.content[offset as usize..end].copy_from_slice(bytes);
                }
                Change::Replace(bytes) => object.content = bytes.to_vec(),
                Change::Zero(offset, length) => {
                    // As a cluster does: zeroes at the end are cut off.
                    let (first, end) = (offset as usize, (offset + length) as usize);
                    if end >= object.content.len() {
                        object.content.truncate(first);
                    } else {
                        object.content[first..end].fill(0);
                    }
                }
                Change::Remove => is_removed = true,
            }
        }
        if is_removed {
            self.objects.remove(name);
        } else {
            self.objects.insert(name.to_owned(), object);
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<Object, Errno> {
        if let Some(errno) = self.refuses_readings {
            return Err(errno);
        }
        self.objects.get(name).cloned().ok_or(Errno(libc::ENOENT))
    }
}

impl Pool for Memory {
    fn change(&self, name: &str, changes: &[Change<'_>], callback: Callback<()>) {
        let mut state = self.0.lock();
        if state.is_unresponsive {
            state.kept.push(Box::new(callback));
            return;
        }
        if let Some(first) = state.before_change.take() {
            first(&mut state);
        }
        let done = match state.refuses_changes {
            Some(errno) => Err(errno),
            None => state.carry_out(name, changes),
        };
        drop(state);
        callback(done);
    }

    fn read(&self, name: &str, offset: u64, length: usize, callback: ReadCallback) {
        let mut state = self.0.lock();
        if state.is_unresponsive {
            state.kept.push(Box::new(callback));
            return;
        }
        let found = state.find(name);
        drop(state);
        let found = found.map(|object| {
            let end = object.content.len().min(offset as usize + length);
            object
                .content
                .get(offset as usize..end)
                .unwrap_or(&[])
                .to_vec()
        });
        callback(found.as_deref().map_err(|errno| *errno));
    }

    fn inspect(&self, name: &str, callback: Callback<Inspected>) {
        let found = self.0.lock().find(name);
        callback(found.map(|object| Inspected {
            size: object.content.len() as u64,
            attributes: object.attributes.into_iter().collect(),
        }));
    }

    fn list(&self, each: &mut dyn FnMut(&str)) -> Result<(), Errno> {
        self.0.lock().objects.keys().for_each(|name| each(name));
        Ok(())
    }

    fn free_bytes(&self) -> Result<Option<u64>, Errno> {
        Ok(Some(1 << 40))
    }
}
