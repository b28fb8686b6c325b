// SPDX-License-Identifier: Apache-2.0
//
// How often the elements of large arrays are copied on their way: who copies them needs as much memory again, and all
// large memory of this program, both workers' and their agents', is counted. Nothing is kept to receive into, so that
// what is received counts once for each message.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "rpc/workers.hpp"

namespace {

constexpr size_t kBytes = size_t{4} << 20;

std::atomic<int> taken = 0;  // pieces of memory of that size or larger

void count(size_t bytes) {
  if (bytes >= kBytes) taken.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

// Counts allocations of the whole program and the libraries that it loads.
extern "C" {
void* __libc_malloc(size_t);            // NOLINT(bugprone-reserved-identifier): glibc's own
void* __libc_calloc(size_t, size_t);    // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void*, size_t);    // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(size_t, size_t);  // NOLINT(bugprone-reserved-identifier)

[[gnu::visibility("default")]] void* malloc(size_t bytes) noexcept {
  count(bytes);
  return __libc_malloc(bytes);
}
[[gnu::visibility("default")]] void* calloc(size_t number, size_t each) noexcept {
  if (each > 0 && number >= kBytes / each) count(kBytes);
  return __libc_calloc(number, each);
}
[[gnu::visibility("default")]] void* realloc(void* data, size_t bytes) noexcept {
  count(bytes);
  return __libc_realloc(data, bytes);
}
[[gnu::visibility("default")]] void* aligned_alloc(size_t unit, size_t bytes) noexcept {
  count(bytes);
  return __libc_memalign(unit, bytes);
}
[[gnu::visibility("default")]] int posix_memalign(void** data, size_t unit, size_t bytes) noexcept {
  count(bytes);
  *data = __libc_memalign(unit, bytes);
  return *data == nullptr ? 12 : 0;  // ENOMEM
}
}

namespace backplane::test {
namespace {

using Numbers = std::vector<double>;
using Array = rpc::Array<double>;

constexpr size_t kCount = kBytes / sizeof(double);

const Array& prepared() {
  static const Array array(Numbers(kCount, 0.5));
  return array;
}

[[maybe_unused]] const bool copies_registered = [] {
  rpc::register_function("array", [](const Array& given) { return given.size(); });
  rpc::register_function("vector", [](const Numbers& given) { return given.size(); });
  rpc::register_function("prepared", [] { return prepared(); });
  rpc::register_function("made", [] { return Numbers(kCount, 0.5); });  // takes memory itself
  return true;
}();

class RpcCopiesTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, RpcCopiesTest, testing::ValuesIn([] {
                           std::vector<std::string> ways = rpc_ways();
                           if (std::erase(ways, "tensorpipe") > 0) {
                             ways.emplace_back("tensorpipe_shm");
                             ways.emplace_back("tensorpipe_uv");
                           }
                           return ways;
                         }()),
                         [](const auto& info) { return info.param; });

// How much memory of an array's size is taken until `call` has ended, the second time.
template <typename Call>
int taken_by(const Call& call) {
  call();
  taken = 0;
  call();
  return taken;
}

void expect_few_copies(const rpc::Worker& worker) {
  const auto call = [&worker](const char* function, auto&& argument) {
    EXPECT_EQ(worker.rpc_sync<size_t>(1, function, std::forward<decltype(argument)>(argument)), kCount);
  };
  const Numbers kept(kCount, 0.5);
  // Received buffers are allocated once; there is no other allocation.
  EXPECT_EQ(taken_by([&call] { call("array", prepared()); }), 1);
  EXPECT_EQ(taken_by([&worker] { worker.rpc_sync<Array>(1, "prepared"); }), 1);
  const auto array = worker.remote<Array>(1, "prepared");
  EXPECT_EQ(taken_by([&array] { array.to_here(); }), 1);
  // A vector takes memory of its own, and so does one that is made here.
  EXPECT_EQ(taken_by([&call] { call("array", Numbers(kCount, 0.5)); }), 1 + 1);
  EXPECT_EQ(taken_by([&call] { call("vector", Numbers(kCount, 0.5)); }), 1 + 2);
  EXPECT_EQ(taken_by([&worker] { worker.rpc_sync<Array>(1, "made"); }), 1 + 1);
  EXPECT_EQ(taken_by([&worker] { worker.rpc_sync<Numbers>(1, "made"); }), 1 + 2);
  EXPECT_EQ(taken_by([&call] { call("vector", prepared()); }), 2);
  // A value that its owner may change during the send is copied there, and once more into the vector of the receiver.
  EXPECT_EQ(taken_by([&call, &kept] { call("array", kept); }), 2);
  EXPECT_EQ(taken_by([&call, &kept] { call("vector", kept); }), 3);
  const auto vector = worker.remote<Numbers>(1, "made");
  EXPECT_EQ(taken_by([&vector] { vector.to_here(); }), 3);
}

TEST_P(RpcCopiesTest, ArraysAreNotCopiedAndVectorsOnceOnEachSide) {
  std::string way = GetParam();
  std::string options = "?keep_bytes=0";
  if (way == "tensorpipe_shm") options += "&transports=shm";
  if (way == "tensorpipe_uv") options += "&transports=uv&channels=basic";
  if (way.starts_with("tensorpipe")) way = "tensorpipe";
  if (way == "ZMQ") options = "";
  prepared();
  in_world(
      way, 2,
      [](const rpc::Worker& worker) {
        if (worker.rank() == 0) expect_few_copies(worker);
      },
      options);
}

}  // namespace
}  // namespace backplane::test
