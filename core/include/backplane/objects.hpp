// SPDX-License-Identifier: Apache-2.0
//
// Typed objects over a group, serialised with msgpack (msgpack-cxx). Unpacking is data only and never runs code; what a
// peer sends is limited in depth and size before anything is allocated for it.
#pragma once

#include <cstddef>
#include <msgpack.hpp>
#include <string>
#include <vector>

#include "backplane/process_group.hpp"

namespace backplane {

namespace detail {

template <typename T>
std::string pack(const T& value) {
  msgpack::sbuffer buffer;
  msgpack::pack(buffer, value);
  return {buffer.data(), buffer.size()};
}

template <typename T>
T unpack(const std::string& bytes) {
  // A container cannot have more elements than the message has bytes, since each takes at least one.
  const size_t most = bytes.size();
  const msgpack::unpack_limit limit(most, most, most, most, most, 64);
  try {
    return msgpack::unpack(bytes.data(), bytes.size(), nullptr, nullptr, limit).get().as<T>();
  } catch (const std::exception& e) {
    fail(Status::kInvalid, std::string("a received object does not have the expected type: ") + e.what());
  }
}

}  // namespace detail

// Every rank, the root too, gets a copy of the root's value.
template <typename T>
T broadcast_value(ProcessGroup& group, const T& value, int root, Timeout timeout = kDefaultTimeout) {
  return detail::unpack<T>(
      group.broadcast_object(group.rank() == root ? detail::pack(value) : std::string(), root, timeout));
}
// W values at the root, in rank order; none elsewhere.
template <typename T>
std::vector<T> gather_values(ProcessGroup& group, const T& value, int root, Timeout timeout = kDefaultTimeout) {
  std::vector<T> values;
  for (const std::string& bytes : group.gather_object(detail::pack(value), root, timeout)) {
    values.push_back(detail::unpack<T>(bytes));
  }
  return values;
}
// W values everywhere, in rank order.
template <typename T>
std::vector<T> all_gather_values(ProcessGroup& group, const T& value, Timeout timeout = kDefaultTimeout) {
  std::vector<T> values;
  for (const std::string& bytes : group.all_gather_object(detail::pack(value), timeout)) {
    values.push_back(detail::unpack<T>(bytes));
  }
  return values;
}
// `values` (W) matters at the root only.
template <typename T>
T scatter_value(ProcessGroup& group, const std::vector<T>& values, int root, Timeout timeout = kDefaultTimeout) {
  std::vector<std::string> packed;
  for (const T& value : values) packed.push_back(detail::pack(value));
  return detail::unpack<T>(group.scatter_object(packed, root, timeout));
}

}  // namespace backplane
