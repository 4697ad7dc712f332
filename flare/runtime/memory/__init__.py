"""Page ids and slots: who holds what. The storage itself belongs to the device."""
