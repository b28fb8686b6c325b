// SPDX-License-Identifier: Apache-2.0
//
// Typed objects over a group, serialised with msgpack (msgpack-cxx). Unpacking runs no code of the peer. Depth and size
// of received data are checked before memory is allocated. The calls are collective and block; a value of another type
// than T is Status::kInvalid.
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

// Returns a copy of the root's value, on every rank including the root.
template <typename T>
T broadcast_value(ProcessGroup& group, const T& value, int root, Timeout timeout = kDefaultTimeout) {
  return detail::unpack<T>(
      group.broadcast_object(group.rank() == root ? detail::pack(value) : std::string(), root, timeout));
}
// Returns W values at the root, in rank order, and none elsewhere.
template <typename T>
std::vector<T> gather_values(ProcessGroup& group, const T& value, int root, Timeout timeout = kDefaultTimeout) {
  std::vector<T> values;
  for (const std::string& bytes : group.gather_object(detail::pack(value), root, timeout)) {
    values.push_back(detail::unpack<T>(bytes));
  }
  return values;
}
// Returns W values, in rank order, on every rank.
template <typename T>
std::vector<T> all_gather_values(ProcessGroup& group, const T& value, Timeout timeout = kDefaultTimeout) {
  std::vector<T> values;
  for (const std::string& bytes : group.all_gather_object(detail::pack(value), timeout)) {
    values.push_back(detail::unpack<T>(bytes));
  }
  return values;
}
// `values`: W at the root; not read elsewhere. Returns this rank's.
template <typename T>
T scatter_value(ProcessGroup& group, const std::vector<T>& values, int root, Timeout timeout = kDefaultTimeout) {
  std::vector<std::string> packed;
  for (const T& value : values) packed.push_back(detail::pack(value));
  return detail::unpack<T>(group.scatter_object(packed, root, timeout));
}

}  // namespace backplane
