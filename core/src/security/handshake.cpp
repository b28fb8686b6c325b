// SPDX-License-Identifier: Apache-2.0
#include "security/handshake.hpp"

#include <sodium.h>

#include <array>
#include <cstring>

#include "error.hpp"
#include "packer.hpp"

namespace backplane::core {
namespace {

static_assert(kKeySize == crypto_scalarmult_BYTES && kKeySize == crypto_scalarmult_SCALARBYTES);
static_assert(kKeySize == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
static_assert(kSealBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);

constexpr std::string_view kPurpose = "backplane store handshake 2";

unsigned char* raw(std::string& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }
const unsigned char* raw(std::string_view bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

using Nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

Nonce nonce(uint64_t count) {
  Nonce result{};
  for (size_t i = 0; i < sizeof count; ++i) result[i] = static_cast<unsigned char>(count >> (8 * i));
  return result;
}

// Derives both keys from one hash.
SessionKeys derive(const Secret& secret, std::string_view client, std::string_view server, const Key& shared) {
  std::array<unsigned char, 2 * kKeySize> both{};
  crypto_generichash_state state;
  ::crypto_generichash_init(&state, secret.key().data(), kKeySize, both.size());
  ::crypto_generichash_update(&state, raw(kPurpose), kPurpose.size());
  ::crypto_generichash_update(&state, raw(client), client.size());
  ::crypto_generichash_update(&state, raw(server), server.size());
  ::crypto_generichash_update(&state, shared.data(), kKeySize);
  ::crypto_generichash_final(&state, both.data(), both.size());
  SessionKeys keys;
  std::memcpy(keys.to_server.data(), both.data(), kKeySize);
  std::memcpy(keys.to_client.data(), both.data() + kKeySize, kKeySize);
  ::sodium_memzero(both.data(), both.size());
  ::sodium_memzero(&state, sizeof state);
  return keys;
}

}  // namespace

KeyExchange::KeyExchange(End end) : end_(end), public_key_(kKeySize, '\0') {
  if (::sodium_init() < 0) fail(BP_RESOURCE, "cannot initialise libsodium: the system provides no random numbers");
  ::randombytes_buf(private_key_.data(), kKeySize);
  ::crypto_scalarmult_base(raw(public_key_), private_key_.data());
}

std::optional<SessionKeys> KeyExchange::agree(const Secret& secret, std::string_view other) const {
  Key shared;
  if (other.size() != kKeySize || ::crypto_scalarmult(shared.data(), private_key_.data(), raw(other)) != 0) {
    return std::nullopt;
  }
  return end_ == End::kClient ? derive(secret, public_key_, other, shared) : derive(secret, other, public_key_, shared);
}

std::string Sealer::seal(std::string_view head, std::string_view payload) {
  const size_t size = head.size() + payload.size();
  std::string frame;
  frame.reserve(kSizeBytes + size + kSealBytes);
  frame += Packer().u32(static_cast<uint32_t>(size + kSealBytes)).bytes();
  frame.append(head).append(payload);
  frame.resize(kSizeBytes + size + kSealBytes);
  unsigned char* const body = raw(frame) + kSizeBytes;
  ::crypto_aead_chacha20poly1305_ietf_encrypt(body, nullptr, body, size, nullptr, 0, nullptr, nonce(count_++).data(),
                                              key_.data());
  return frame;
}

std::optional<std::string_view> Opener::open(std::span<char> body) {
  if (body.size() < kSealBytes) return std::nullopt;
  auto* const bytes = reinterpret_cast<unsigned char*>(body.data());
  if (::crypto_aead_chacha20poly1305_ietf_decrypt(bytes, nullptr, nullptr, bytes, body.size(), nullptr, 0,
                                                  nonce(count_++).data(), key_.data()) != 0) {
    return std::nullopt;
  }
  return std::string_view(body.data(), body.size() - kSealBytes);
}

}  // namespace backplane::core
