// Declarations for c10d's headers; see README.md in this folder's root.
#pragma once

namespace gloo {
class Algorithm;
} // namespace gloo
