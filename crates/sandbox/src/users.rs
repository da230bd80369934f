//! [`FilterUser`]: a user that exactly one filter on the machine has.
//!
//! Several processes of a machine assign users to filters: an agent, relays, `scree
//! filter-server`. They share no folder and may end at any moment. So each reserves a user by
//! binding an abstract Unix socket whose name has the user's number: the kernel lets one process
//! have the name, whatever its own user is, and releases it when the process ends. Nothing is sent
//! over the socket, and no filter's process inherits it.
//!
//! Other programs on the machine can bind such names, too. They can only keep numbers from
//! filters, of which there are 1,048,576. Names belong to a network namespace: processes in
//! different ones do not see each other's reservations.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// The first user number. Distributions assign no numbers in this range.
const USERS_FROM: u32 = 1_900_000_000;
/// The number of users.
const USERS: u32 = 1 << 20;

/// A reserved user. It is dropped when no process of the user is left.
pub(crate) struct FilterUser {
    number: u32,
    _taken: OwnedFd,
}

impl FilterUser {
    /// The number of the user and of its group.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Reserves a user; `None` if it is reserved already.
    fn take(number: u32) -> io::Result<Option<Self>> {
        let flags = SocketFlags::CLOEXEC;
        let taken = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let name = format!("scree-filter-user-{number}");
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        match bind(&taken, &name) {
            Ok(()) => Ok(Some(Self {
                number,
                _taken: taken,
            })),
            Err(rustix::io::Errno::ADDRINUSE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The users that one process assigns to its filters.
pub(crate) struct FilterUsers {
    /// The next number to try. Numbers are not reused at once, so that a new filter does not get
    /// what an earlier one has left on the machine.
    next: AtomicU32,
}

impl FilterUsers {
    /// A process that has reserved no user.
    pub const fn new() -> Self {
        let next = AtomicU32::new(0);
        Self { next }
    }

    /// Reserves the next free user.
    ///
    /// # Errors
    /// If all users are reserved, or the operating system's error.
    pub fn take(&self) -> io::Result<FilterUser> {
        for _ in 0..USERS {
            let next = self.next.fetch_add(1, Ordering::Relaxed) % USERS;
            if let Some(user) = FilterUser::take(USERS_FROM + next)? {
                return Ok(user);
            }
        }
        Err(io::Error::other("all users for filters are reserved"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Each process once counted from the first number, so that a filter of the agent and one of a
    /// relay had the same user and could open each other's sockets and kill each other.
    #[test]
    fn two_processes_of_a_machine_never_assign_the_same_user() {
        let (agent, relay) = (FilterUsers::new(), FilterUsers::new());
        let mut taken = Vec::new();
        for _ in 0..20 {
            taken.push(agent.take().expect("there are many"));
            taken.push(relay.take().expect("there are many"));
        }
        let numbers: HashSet<u32> = taken.iter().map(FilterUser::number).collect();
        assert_eq!(numbers.len(), taken.len());
        assert!(numbers.iter().all(|number| *number >= USERS_FROM));

        let user = taken.pop().expect("there is one");
        let number = user.number();
        let other = FilterUser::take(number).expect("it can be asked");
        assert!(other.is_none(), "it is reserved");
        drop(user);
        let other = FilterUser::take(number).expect("it can be asked");
        assert!(other.is_some(), "it was released");
    }
}
