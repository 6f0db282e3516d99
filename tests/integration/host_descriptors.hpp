// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What programs do to descriptors: they use them up, and put files of their own in the place of others'.

#pragma once

#include "support/commanded.hpp"

namespace gpu_sleep::test {

/// usurp_sockets: puts a file of the program's in the place of every socket, as one that closes all
/// descriptors may. The answer is how many there were.
Answer usurp_sockets(Words& words);

/// usurped: whether those are all still there, "unharmed" or "harmed".
Answer check_usurped(Words& words);

/// use_descriptors: until there are none left.
Answer use_descriptors(Words& words);

/// leave_descriptors: gives those back.
Answer leave_descriptors(Words& words);

/// close_standard: 0, 1 and 2, as a daemon does. It is commanded by others from there on.
Answer close_standard(Words& words);

/// mutter: a thread writes to 0, 1 and 2 all the time from here on, as if they were open.
Answer start_muttering(Words& words);

/// muttered: how much of that came to anything.
Answer count_muttered(Words& words);

} // namespace gpu_sleep::test
