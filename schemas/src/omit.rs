//! What serde asks of a field before it is written: fields that came later are written only where they say something, so
//! that documents of before keep their bytes and their hash.

/// Whether the value is what its type begins with.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether the number is 1.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
pub(crate) fn is_one(number: &f64) -> bool {
    *number == 1.0
}

/// Whether the count is 1.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
pub(crate) const fn is_single(count: &u32) -> bool {
    *count == 1
}

/// Whether the flag is set.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
pub(crate) const fn is_true(flag: &bool) -> bool {
    *flag
}
