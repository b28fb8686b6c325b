// SPDX-License-Identifier: Apache-2.0
//
// Conversions to buffers. A const range does not convert to Buffer. A temporary that owns its elements converts to
// neither type. Each call of the C++ API takes ConstBuffer for inputs and Buffer for outputs.
#include <algorithm>
#include <array>
#include <concepts>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backplane/compat/megengine.hpp"
#include "backplane/compat/multigpu.hpp"
#include "backplane/gradients.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

template <typename From>
concept Writable = std::convertible_to<From, Buffer>;
template <typename From>
concept Readable = std::convertible_to<From, ConstBuffer>;

using Floats = std::vector<float>;
static_assert(Writable<Floats&> && Readable<Floats&>);
static_assert(!Writable<const Floats&> && Readable<const Floats&>);
static_assert(!Writable<Floats> && !Readable<Floats>);
static_assert(!Writable<const Floats> && !Readable<const Floats>);
static_assert(Writable<std::span<float>> && Readable<std::span<float>>);
static_assert(!Writable<std::span<const float>> && Readable<std::span<const float>>);
static_assert(Writable<const std::span<float>&>);  // a const span has mutable elements
static_assert(Writable<Memory<float>&> && !Writable<const Memory<float>&> && Readable<const Memory<float>&>);
static_assert(!Writable<Memory<float>> && !Readable<Memory<float>>);
static_assert(Writable<int (&)[2]> && !Writable<const int (&)[2]> && Readable<const int (&)[2]>);
static_assert(!Writable<int (&&)[2]> && !Readable<int (&&)[2]>);
static_assert(Writable<std::array<int, 2>&> && !Writable<const std::array<int, 2>&>);
static_assert(Readable<Buffer> && !Writable<ConstBuffer>);
static_assert(!Readable<std::vector<std::string>&> && !Readable<std::vector<bool>&> && !Readable<float&>);

template <typename T>
concept Single = requires {
  as_buffer(std::declval<T>());
};
static_assert(std::same_as<decltype(as_buffer(std::declval<int&>())), Buffer>);
static_assert(std::same_as<decltype(as_buffer(std::declval<const int&>())), ConstBuffer>);
static_assert(!Single<int> && !Single<const int>);

// Whether each call with an input and an output compiles with arguments of these types. (clang-format 14 does not
// support requires-expressions in lists.)
// clang-format off
template <typename In, typename Out, typename Group = ProcessGroup&>
constexpr std::array kMoves = {
    requires { std::declval<Group>().all_reduce(std::declval<In>(), std::declval<Out>()); },
    requires { std::declval<Group>().all_reduce_premul_sum(std::declval<In>(), std::declval<Out>(), 2.0F); },
    requires { std::declval<Group>().reduce(std::declval<In>(), std::declval<Out>(), 0); },
    requires { std::declval<Group>().gather(std::declval<In>(), std::declval<Out>(), 0); },
    requires { std::declval<Group>().gatherv(std::declval<In>(), std::declval<Out>(), Blocks(), 0); },
    requires { std::declval<Group>().scatter(std::declval<In>(), std::declval<Out>(), 0); },
    requires { std::declval<Group>().scatterv(std::declval<In>(), Blocks(), std::declval<Out>(), 0); },
    requires { std::declval<Group>().all_gather(std::declval<In>(), std::declval<Out>()); },
    requires { std::declval<Group>().all_gatherv(std::declval<In>(), std::declval<Out>(), Blocks()); },
    requires { std::declval<Group>().reduce_scatter(std::declval<In>(), std::declval<Out>()); },
    requires { std::declval<Group>().reduce_scatterv(std::declval<In>(), Blocks(), std::declval<Out>()); },
    requires { std::declval<Group>().all_to_all(std::declval<In>(), std::declval<Out>()); },
    requires { std::declval<Group>().all_to_allv(std::declval<In>(), Blocks(), std::declval<Out>(), Blocks()); },
    requires { gather(std::declval<In>(), std::declval<Out>()); },
    requires { scatter(std::declval<In>(), std::declval<Out>()); },
    requires { all_gather(std::declval<In>(), std::declval<Out>()); },
    requires { reduce_scatter(std::declval<In>(), std::declval<Out>()); },
    requires { all_to_all(std::declval<In>(), std::declval<Out>()); },
    requires { detail::copy_buffer(std::declval<In>(), std::declval<Out>(), PackMemory()); },
    requires { PackMemory().copy(std::declval<In>(), std::declval<Out>()); },
};
// The same for calls with one input, and for calls with one output or buffer in place.
template <typename T, typename Group = ProcessGroup&>
constexpr std::array kReads = {
    requires { std::declval<Group>().send(std::declval<T>(), 0); },
    requires { send(std::declval<T>(), 0); },
    requires { compat::pack_split(std::declval<T>(), std::span<const uint64_t>(), std::span<const Buffer>()); },
};
template <typename T, typename Group = ProcessGroup&>
constexpr std::array kWrites = {
    requires { std::declval<Group>().broadcast(std::declval<T>(), 0); },
    requires { std::declval<Group>().all_reduce(std::declval<T>()); },
    requires { std::declval<Group>().recv(std::declval<T>()); },
    requires { std::declval<Group>().irecv(std::declval<T>()); },
    requires { broadcast(std::declval<T>(), 0); },
    requires { all_reduce(std::declval<T>()); },
    requires { reduce(std::declval<T>(), 0); },
    requires { recv(std::declval<T>()); },
    requires { irecv(std::declval<T>()); },
    requires { std::declval<GradientReducer&>().add(std::string(), std::declval<T>()); },
    requires { compat::pack_concat(std::span<const ConstBuffer>(), std::span<const uint64_t>(), std::declval<T>()); },
    requires { compat::pack_split(std::declval<T>(), std::span<const uint64_t>()); },
};
// clang-format on
// isend takes ownership of a vector, and accepts no other temporary.
template <typename T>
concept Sends = requires(ProcessGroup& group) {
  group.isend(std::declval<T>(), 0);
  isend(std::declval<T>(), 0);
};

constexpr bool all(const auto& calls) { return std::ranges::all_of(calls, std::identity()); }
constexpr bool none(const auto& calls) { return std::ranges::none_of(calls, std::identity()); }

static_assert(all(kMoves<const Floats&, Floats&>) && all(kMoves<std::span<const float>, std::span<float>>));
static_assert(none(kMoves<Floats&, const Floats&>) && none(kMoves<Floats&, std::span<const float>>));
static_assert(none(kMoves<Floats, Floats&>) && none(kMoves<Floats&, Floats>));
static_assert(all(kReads<const Floats&>) && all(kReads<Buffer>) && none(kReads<Floats>));
static_assert(Sends<const Floats&> && Sends<Floats> && Sends<Buffer> && !Sends<std::array<int, 2>>);
static_assert(all(kWrites<Floats&>) && none(kWrites<const Floats&>) && none(kWrites<ConstBuffer>) &&
              none(kWrites<Floats>));
// _multigpu: a list of outputs does not convert to a list of inputs, so that swapped arguments do not compile.
template <typename In, typename Out>
concept GathersDevices = requires {
  compat::all_gather_multigpu(std::declval<const std::vector<In>&>(), std::declval<const std::vector<Out>&>());
};
static_assert(GathersDevices<ConstBuffer, Buffer> && !GathersDevices<Buffer, ConstBuffer>);

TEST(BuffersTest, AConstInputIsReadAndNotWritten) {
  in_group("inproc", 2, [](ProcessGroup& group) {
    const std::vector<int> in = {group.rank(), 1};
    std::vector<int> out(2);
    group.all_reduce(in, out);
    EXPECT_EQ(out, (std::vector<int>{1, 2}));
    EXPECT_EQ(in, (std::vector<int>{group.rank(), 1}));
    const int mine = group.rank() + 5;
    group.all_gather(as_buffer(mine), out);
    EXPECT_EQ(out, (std::vector<int>{5, 6}));
  });
}

}  // namespace
}  // namespace backplane::test
