// SPDX-License-Identifier: Apache-2.0
//
// The job's secret: what its ranks and launchers know and nobody else. Whoever has one is in secure mode: the TCP store
// proves it to the other end and wants the same proof (handshake.hpp), and backends must know their peers, too.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace backplane::core {

// Bytes of a secret, without the newline at its end. Short ones could be guessed by whoever records a handshake: they
// must be random, not words.
inline constexpr size_t kMinSecretSize = 16;
inline constexpr size_t kMaxSecretSize = 1024;

inline constexpr size_t kKeySize = 32;

// A key that is gone from memory when it is not needed any more.
class Key {
 public:
  Key() = default;
  ~Key();
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  unsigned char* data() { return bytes_.data(); }
  const unsigned char* data() const { return bytes_.data(); }

 private:
  std::array<unsigned char, kKeySize> bytes_{};
};

// What is kept of it: a hash. Immutable, so any thread may use it.
class Secret {
 public:
  // One newline at the end does not count. BP_INVALID, with `where` and no byte of the secret, if the size is none of a
  // secret.
  Secret(std::string_view bytes, const std::string& where);
  const Key& key() const { return key_; }

 private:
  Key key_;
};

// BACKPLANE_SECRET_FILE (a path) or BACKPLANE_SECRET_FD (an open descriptor, which is not used up: several may read it)
// if one of them is set and not empty: its name, else "". That is what makes a process secure, before anything is read.
std::string secret_variable();

// The secret that these name, null if there is none. BP_INVALID, in a sentence that says what to do, if both are set,
// the file is no regular one of this user's, others may read or write it, or the size is none of a secret.
std::shared_ptr<const Secret> environment_secret();

}  // namespace backplane::core
