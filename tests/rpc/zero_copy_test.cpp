// SPDX-License-Identifier: Apache-2.0
//
// Buffers are sent without a copy, unless another thread could modify them.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "backplane/rpc.hpp"

namespace backplane::test {
namespace {

using Numbers = std::vector<double>;

// The address of the only buffer of a message.
const void* address_of(const bp_rpc_content& content) {
  EXPECT_EQ(content.buffer_count, 1U);
  return content.buffer_count == 1 ? content.buffers[0].data : nullptr;
}

// The address of the encoded value, whose content is stored in `copy`.
const void* address_of(const bp_rpc_value& value, bool last_reference, Numbers* copy) {
  bp_rpc_content content = {};
  content.struct_size = sizeof(content);
  content.last_reference = last_reference ? 1 : 0;
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(value.encode(value.object, &content, &err), BP_OK) << err.text;
  const void* const address = address_of(content);
  const auto* const data = static_cast<const double*>(address);
  copy->assign(data, data + content.buffers[0].count / sizeof(double));
  content.release(content.owner);
  return address;
}

TEST(RpcZeroCopyTest, SendsResultsInPlaceAndCopiesKeptValues) {
  const bp_rpc_value value = rpc::detail::keep<Numbers>(Numbers(1000, 0.5));
  const auto* const kept = static_cast<rpc::detail::Kept<Numbers>*>(value.object);
  Numbers copy;
  EXPECT_EQ(address_of(value, true, &copy), kept->value.data());
  EXPECT_EQ(copy, kept->value);
  EXPECT_NE(address_of(value, false, &copy), kept->value.data());
  EXPECT_EQ(copy, kept->value);
  value.destroy(value.object);
}

TEST(RpcZeroCopyTest, SendsMovedArgumentsInPlace) {
  const auto packed_address = [](auto&& argument) {
    rpc::detail::Packer packer;
    packer.add(std::forward<decltype(argument)>(argument));
    const bp_rpc_content content = packer.content();
    const void* const address = address_of(content);
    content.release(content.owner);
    return address;
  };
  Numbers moved(1000, 0.5);
  const void* const address = moved.data();
  EXPECT_EQ(packed_address(std::move(moved)), address);
  const Numbers left(1000, 0.5);
  EXPECT_NE(packed_address(left), left.data()) << "the caller may modify it during the send";
  const rpc::Array<double> array(Numbers(1000, 0.5));
  EXPECT_EQ(packed_address(array), array.data());
}

}  // namespace
}  // namespace backplane::test
