//! What a unit asks of a pool, as a trait: librados carries it out, and in tests a
//! pool in memory. Errors are numbers, as librados has them; what they mean for a
//! unit is said in [`crate::meaning`].
//!
//! Every question is answered once, also if it could not be asked. Answers come on
//! any thread, and whoever is told of one must not wait.

/// An error number of the operating system, positive; or above 4095, where the
/// byte is at which [`Change::MustBegin`] found something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// The smallest number that says where something differs.
    const DIFFERS: i32 = 4095;

    /// Whether a condition of a change did not hold.
    pub(crate) fn is_condition(self) -> bool {
        self.0 == libc::ECANCELED || self.0 >= Self::DIFFERS
    }
}

/// A part of a change of one object. All parts of a change are carried out, in
/// their order, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    /// Make it; `EEXIST` if it is there.
    Create,
    /// `ENOENT` if it is not there.
    MustExist,
    /// An attribute has this value, or the change fails ([`Errno::is_condition`]).
    MustHave(&'static str, &'a [u8]),
    /// The content is this, in which no byte is zero, or the change fails.
    MustBe(&'a [u8]),
    /// It will be so long, and be written so much at once, in bytes.
    Expect { object_bytes: u64, write_bytes: u64 },
    /// Give an attribute this value.
    Set(&'static str, &'a [u8]),
    /// Write at an offset.
    Write(u64, &'a [u8]),
    /// Have this content and no other.
    Replace(&'a [u8]),
    /// Give up the content from an offset on, so many bytes. They read as zeroes; if
    /// nothing lies behind them, the object ends before them.
    Zero(u64, u64),
    /// Remove it.
    Remove,
}

/// An object without its content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Inspected {
    /// How long it is, in bytes.
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

/// Is told what came of a question.
pub(crate) type Told<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

/// Is told what was read, which may be less than was asked for.
pub(crate) type ToldBytes = Box<dyn FnOnce(Result<&[u8], Errno>) + Send>;

/// A namespace of a pool, or a connection to one.
pub(crate) trait Pool: Send + Sync {
    /// Begins to change the object called `name`.
    fn change(&self, name: &str, changes: &[Change<'_>], told: Told<()>);

    /// Begins to read `length` bytes of an object.
    fn read(&self, name: &str, offset: u64, length: usize, told: ToldBytes);

    /// Begins to read its length and attributes, as of one moment.
    fn inspect(&self, name: &str, told: Told<Inspected>);

    /// Names all objects, in no order. It waits.
    fn list(&self, each: &mut dyn FnMut(&str)) -> Result<(), Errno>;

    /// How much more content the pool takes, in bytes, if it says so. It waits.
    fn free_bytes(&self) -> Result<Option<u64>, Errno>;
}
