// SPDX-License-Identifier: Apache-2.0
#pragma once

// Optimises a function of a test program, which is compiled without optimisation: for loops over the elements of large
// buffers, which otherwise take most of a test's time under the sanitizers. The sanitizers see each access as before.
// Such a loop uses pointers: other functions are inlined only if they are always_inline. clang has no such attribute.
#if defined(__GNUC__) && !defined(__clang__)
#define BACKPLANE_TEST_OPTIMIZED [[gnu::optimize("O2")]]
#else
#define BACKPLANE_TEST_OPTIMIZED
#endif
