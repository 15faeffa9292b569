"""The engine `strip`: warps that walk the loop on their own."""
