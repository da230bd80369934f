//! The requests of a unit to a pool, as a trait, which librados and, in tests, a pool in memory
//! implement. Errors are numbers, as in librados; [`crate::errors`] converts them.
//!
//! Every callback is called once, even if the request could not be sent. Callbacks run on any
//! thread and must not wait.

/// An error number of the operating system, positive; from 4095 on, the offset of the byte at
/// which [`Change::MustBe`] found a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// The smallest number that is an offset of a difference.
    const DIFFERS: i32 = 4095;

    /// Whether a condition of a change did not hold.
    pub(crate) fn is_condition(self) -> bool {
        self.0 == libc::ECANCELED || self.0 >= Self::DIFFERS
    }
}

/// One part of an atomic change of an object. Parts are carried out in order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    /// Create the object; `EEXIST` if it exists.
    Create,
    /// Fail with `ENOENT` if it does not exist.
    MustExist,
    /// Fail unless an attribute has this value ([`Errno::is_condition`]).
    MustHave(&'static str, &'a [u8]),
    /// Fail unless this is the content, which must have no zero byte.
    MustBe(&'a [u8]),
    /// Hint: the expected length of the object and of its writes, in bytes.
    Expect { object_bytes: u64, write_bytes: u64 },
    /// Set an attribute.
    Set(&'static str, &'a [u8]),
    /// Write at an offset.
    Write(u64, &'a [u8]),
    /// Replace the content.
    Replace(&'a [u8]),
    /// Zero bytes: offset and length. At the end of the object they are cut off.
    Zero(u64, u64),
    /// Remove the object.
    Remove,
}

/// The length and the attributes of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Inspected {
    /// Length in bytes.
    pub(crate) size: u64,
    /// Its attributes.
    pub(crate) attributes: Vec<(String, Vec<u8>)>,
}

impl Inspected {
    /// The value of an attribute; empty if there is none.
    pub(crate) fn attribute(&self, name: &str) -> &[u8] {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map_or(&[], |(_, value)| value)
    }
}

/// Called with the result of a request.
pub(crate) type Callback<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

/// Called with the bytes that were read, which may be fewer than requested.
pub(crate) type ReadCallback = Box<dyn FnOnce(Result<&[u8], Errno>) + Send>;

/// A namespace of a pool, or a connection to one.
pub(crate) trait Pool: Send + Sync {
    /// Starts to change the object `name`.
    fn change(&self, name: &str, changes: &[Change<'_>], callback: Callback<()>);

    /// Starts to read `length` bytes of an object.
    fn read(&self, name: &str, offset: u64, length: usize, callback: ReadCallback);

    /// Starts to read its length and attributes atomically.
    fn inspect(&self, name: &str, callback: Callback<Inspected>);

    /// Calls `each` with the name of each object, in any order. Waits.
    fn list(&self, each: &mut dyn FnMut(&str)) -> Result<(), Errno>;

    /// Free room of the pool in bytes, if it is reported. Waits.
    fn free_bytes(&self) -> Result<Option<u64>, Errno>;
}
