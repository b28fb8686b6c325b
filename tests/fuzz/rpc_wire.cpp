// SPDX-License-Identifier: Apache-2.0
//
// Messages between workers: a header, then values. Any bytes are decoded or rejected (Status::kInvalid). A decoded
// header encodes to the same bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backplane/detail/rpc_content.hpp"
#include "coverage.hpp"
#include "error.hpp"
#include "rpc/wire.hpp"

namespace {

using namespace backplane::core;

Coverage read_header("a header was read");
Coverage rejected_header("a header was rejected");
Coverage read_values("values were read");
Coverage rejected_values("values were rejected");

void require(bool truth) {
  if (!truth) std::abort();
}

// Decoding recurses once per level.
struct Tree {
  std::vector<Tree> branches;
  MSGPACK_DEFINE(branches)
};

template <typename... Values>
void read(std::string_view bytes) {
  size_t offset = 0;
  try {
    (backplane::rpc::detail::unpack<Values>(bytes.data(), bytes.size(), &offset), ...);
    require(offset <= bytes.size());
    read_values.mark();
  } catch (const backplane::Error& e) {
    require(e.status() == backplane::Status::kInvalid && *e.what() != '\0');
    rejected_values.mark();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  std::string_view left = all;
  try {
    const rpc::Header header = rpc::decode(&left);
    require(rpc::encode(header, 0) == all.substr(0, size - left.size()));
    read_header.mark();
  } catch (const Error& e) {
    require(e.status() == BP_INVALID && *e.what() != '\0');
    left = all;
    rejected_header.mark();
  }
  read<int, std::string, std::vector<double>>(left);
  read<std::map<std::string, std::pair<int64_t, bool>>>(left);
  read<Tree>(left);
  return 0;
}
