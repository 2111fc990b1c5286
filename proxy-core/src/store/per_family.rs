//! One value for each IP family.

use crate::address::IpFamily;

/// One value for each IP family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerFamily<T> {
    v4: T,
    v6: T,
}

impl<T> PerFamily<T> {
    /// The values that `make` gives.
    pub(crate) fn from_fn(mut make: impl FnMut(IpFamily) -> T) -> Self {
        Self { v4: make(IpFamily::V4), v6: make(IpFamily::V6) }
    }

    /// The value of this family.
    pub(crate) fn of(&self, family: IpFamily) -> &T {
        match family {
            IpFamily::V4 => &self.v4,
            IpFamily::V6 => &self.v6,
        }
    }

    /// The value of this family, to change it.
    pub(crate) fn of_mut(&mut self, family: IpFamily) -> &mut T {
        match family {
            IpFamily::V4 => &mut self.v4,
            IpFamily::V6 => &mut self.v6,
        }
    }

    /// Both values, to change them, IPv4 first.
    pub(crate) fn both_mut(&mut self) -> impl Iterator<Item = &mut T> {
        [&mut self.v4, &mut self.v6].into_iter()
    }

    /// Both values, IPv4 first.
    pub(crate) fn both(&self) -> impl Iterator<Item = &T> {
        [&self.v4, &self.v6].into_iter()
    }
}
